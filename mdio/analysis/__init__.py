"""The block-analysis driver: kernels over the blocks of any layout, with their timings."""
