"""Data sets in the files that TensorFlow Federated distributes, read without TensorFlow."""
