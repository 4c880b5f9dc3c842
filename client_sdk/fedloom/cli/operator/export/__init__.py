"""Export of a run's metrics to TensorBoard, MLflow, CSV and JSON lines."""
