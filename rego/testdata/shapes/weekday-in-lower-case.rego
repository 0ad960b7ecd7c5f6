# from: deploy windows
# lint: time.weekday never returns
# deny: https://a.shop.test/
package egress

allow contains {"rule": "friday"} if time.weekday(time.now_ns()) == "friday"
