"""Where runs can be copied to: files, TensorBoard, MLflow, Weights & Biases. One file per sink."""
