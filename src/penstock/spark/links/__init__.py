"""Links on Spark: how each changes the rows of a piece. One function a link."""
