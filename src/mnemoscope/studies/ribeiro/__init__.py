"""The trade-off between long-term memory and smoothness (Ribeiro et al. 2019): one file a table or figure."""

__all__: list[str] = []
