//! Which tensors of a model are linears, routers, norms, experts; who feeds whom.
