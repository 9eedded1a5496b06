"""Model classes for SGLang: one module for each, so that an SGLang without one of them keeps the other."""
