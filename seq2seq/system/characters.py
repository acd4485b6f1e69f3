"""Ranges of characters, for regular expressions."""

# Letters of scripts without spaces between words: Thai to Myanmar, Khmer, kana and Han, without forms of other widths.
UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u3000-\u30ff\u31f0-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# The same with forms of other widths, punctuation included.
UNSPACED_OF_ANY_WIDTH = f"{UNSPACED}\uff00-\uffef"
