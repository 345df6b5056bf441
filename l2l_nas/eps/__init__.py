"""The eager param-server: the host side, where every layer's weights, moments, step counts and buffers live."""
