"""Text: what language models are measured with, and how they write."""
