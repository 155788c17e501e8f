"""Recurrence and self-attention (Kerg et al. 2020, appendix): one file a table or figure."""

__all__: list[str] = []
