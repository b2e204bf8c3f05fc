"""Starting deployments: the app of an experiment, runs on a SuperLink, certificates, a cluster on this machine."""
