"""Fish Audio S2-Pro: text and reference voices to speech with a dual autoregressive model and a causal codec."""
