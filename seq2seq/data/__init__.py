"""Text from files to batches. A batch passes these modules in order; the others check, describe or help.

1. split_files finds the files of a split; text_files, delimited, json_text, tmx, readers and hub read them.
2. raw_pairs opens a split as blocks of raw pairs, which text_checks inspects.
3. cleaning drops pairs, and corpus writes the rest to the cache, or opens the cached text.
4. tokenizer encodes a block as ids, and token_cache writes them to the cache.
5. preparation does steps 1 to 4 for all corpora of a plan; before that, preflight opens each corpus once.
6. batching groups pairs, updates chooses the batches of a rank, and dataset pads them. streaming does steps 2 to 6
   during training.
"""
