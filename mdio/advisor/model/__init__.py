"""How a machine scales: its profile, the closed form of the times, and fits to measured timings."""
