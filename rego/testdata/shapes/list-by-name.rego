# from: v0's sets, with a list in JSON
# data: {"hosts": ["a.shop.test", "b.shop.test"]}
# lint: whose keys are numbers
# deny: https://a.shop.test/
package egress

allow contains {"rule": "listed"} if data.hosts[input.destination.host]
