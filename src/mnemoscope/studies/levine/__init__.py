"""Benefits of depth for long-term memory of recurrent networks (Levine et al. 2018): one file a table or figure."""

__all__: list[str] = []
