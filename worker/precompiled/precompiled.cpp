// Carries the precompiled header: a target needs a source file.
