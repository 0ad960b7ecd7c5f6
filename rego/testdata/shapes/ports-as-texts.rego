# from: lists of ports in YAML with quotes
# data: {"ports": ["443", "8443"]}
# lint: write 443 without quotes
# deny: https://a.shop.test/
package egress

allow contains {"rule": "ports"} if input.destination.port in data.ports
