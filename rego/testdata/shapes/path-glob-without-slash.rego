# from: patterns of paths
# lint: write "/api/*"
# deny: https://a.shop.test/api/x
package egress

allow contains {"rule": "api"} if glob.match("api/*", ["/"], input.http.path)
