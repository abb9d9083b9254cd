//! Tool-call parsers, one file per wire grammar, faithful to the server.
