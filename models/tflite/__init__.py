"""`.tflite` files written from ONNX graphs."""
