"""When recurrent models don't need to be recurrent (Miller & Hardt 2018): one file a table or figure."""

__all__: list[str] = []
