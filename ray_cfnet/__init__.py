"""Predictions with counterfactual explanations for every row of a Parquet table: CounterNet on Ray."""
