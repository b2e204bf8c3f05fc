"""What all studies share: claims and verdicts, running and measuring, tables, pages and the command line."""
