//! Every operation the models need, on every device, behind one seam.
