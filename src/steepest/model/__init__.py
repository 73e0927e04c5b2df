"""Which rule steps which parameter of a whole ``torch.nn.Module``."""
