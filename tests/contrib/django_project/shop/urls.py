"""The addresses of the shop."""

from django.urls import path

from shop import views

urlpatterns = [
    path("order/<str:how>", views.order),
    path("order-later", views.order_later),
    path("order-async", views.order_async),
    path("refuse", views.refuse),
]
