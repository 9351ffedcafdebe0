def is_asked(connector, request): return True
