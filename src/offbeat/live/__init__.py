"""The live view: a web server that shows runs while they are in progress, from their files only."""
