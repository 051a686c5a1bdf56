"""Rows of metrics: metrics.csv, Weights & Biases, TensorBoard, Trackio, MLflow."""
