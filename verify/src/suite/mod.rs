//! Scored tool-calling cases.
