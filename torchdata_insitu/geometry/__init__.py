"""What the arrays are: shapes, chunk grids, dtypes, and the views that draws are read through."""
