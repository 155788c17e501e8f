"""Small changes to the source that the tests must notice: `table` lists them, `run` runs them."""
