docker sandbox network proxy dev \
  --policy deny \
  --allow-host api.example.com:443 \
  --allow-host cdn.example.com \
  --allow-host "*.storage.example.com:443" \
  --block-host secret.storage.example.com \
  --block-cidr 93.184.216.0/24
