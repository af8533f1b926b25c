"""Training of Pleach's bundled model, and of drafters and Weavers for the models that Pleach runs."""
