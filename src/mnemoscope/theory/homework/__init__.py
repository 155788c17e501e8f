"""The answers of a homework in representation learning (Nabli 2019): initialisation, regularisation, gradients."""
