"""Questions on deep learning (Nabli 2019): one file a table or figure."""

__all__: list[str] = []
