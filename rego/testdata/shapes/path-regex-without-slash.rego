# from: patterns of paths
# lint: paths begin with a slash
# deny: https://a.shop.test/api/x
package egress

allow contains {"rule": "api"} if regex.match(`^api/.*$`, input.http.path)
