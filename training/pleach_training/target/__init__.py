"""The bundled hybrid model `pleach-mini`: tokenizer, data, network, training and samples."""
