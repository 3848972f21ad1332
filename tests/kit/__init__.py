"""What tests share: servers, streams, processes, clusters."""
