"""Networks as data: one-hidden-layer and deeper, in float64, with safetensors in and out."""
