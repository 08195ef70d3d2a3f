"""Commands that connect several hosts to one search: worker, cluster certs and cluster scheduler."""
