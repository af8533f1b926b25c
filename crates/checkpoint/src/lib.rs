//! Model files (Hugging Face, GGUF, MLX) as one typed description with checked, mapped tensors.
