// Carries the precompiled header, since a target needs a source file.
