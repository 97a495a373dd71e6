"""Where `mdio.testing.blocks` was."""

from mdio.testing.blocks import dt_of, info_of, oracle_of, random_block, store_piece

__all__ = ["dt_of", "info_of", "oracle_of", "random_block", "store_piece"]
