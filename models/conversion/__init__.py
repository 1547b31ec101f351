"""From what people bring to an ONNX graph: checkpoints read without running them, and ONNX files."""
