# from: domain lists with glob and null
# lint: null delimiters
package egress

allow contains {"rule": "shop"} if glob.match("*.shop.test", null, input.destination.host)
