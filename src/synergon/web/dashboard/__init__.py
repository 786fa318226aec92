"""The dashboard: pages for people, made by the server from what the HTTP API answers. Needs the extra `web`."""
