# from: newcomers, == with a list of data
# data: {"hosts": ["a.shop.test", "b.shop.test"]}
# lint: in data.hosts
# deny: https://a.shop.test/
package egress

allow contains {"rule": "listed"} if input.destination.host == data.hosts
