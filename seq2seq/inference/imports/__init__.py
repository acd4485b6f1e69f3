"""Read models of other programs: the settings, weights and tokenizer of a checkpoint of this program."""
